// @ts-check

/**
 * Something worth protecting: the balance of an account. It remembers the largest fencing token that it has seen and refuses a
 * smaller one. In a database this is `UPDATE … SET balance = $1, token = $2 WHERE id = $3 AND token <= $2`.
 */
export class Account {
  balance = 100
  #highestToken = 0

  /**
   * Whoever is about to read the balance in order to change it presents its token first. From then on no older holder can write,
   * whose update the new one would overwrite unseen.
   *
   * @param {number} token
   */
  accept(token) {
    if (token < this.#highestToken) return false
    this.#highestToken = token
    return true
  }

  /**
   * @param {number} balance
   * @param {number} token
   */
  write(balance, token) {
    if (!this.accept(token)) return false
    this.balance = balance
    return true
  }
}

/** The same without the check: what most programs have. */
export class CarelessAccount {
  balance = 100

  /** @param {number} balance */
  write(balance) {
    this.balance = balance
    return true
  }
}
