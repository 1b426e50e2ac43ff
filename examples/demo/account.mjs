// @ts-check

/**
 * A protected resource: the balance of an account. It remembers the largest fencing token that it has seen, and rejects
 * a smaller one. In a database this is `UPDATE … SET balance = $1, token = $2 WHERE id = $3 AND token <= $2`.
 */
export class Account {
  balance = 100
  #highestToken = 0

  /**
   * A holder presents its token before it reads the balance in order to change it. From then on no older holder can
   * write, so that the new holder cannot overwrite an update that it has not seen.
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

/** The same without the check, as in most programs. */
export class CarelessAccount {
  balance = 100

  /** @param {number} balance */
  write(balance) {
    this.balance = balance
    return true
  }
}
