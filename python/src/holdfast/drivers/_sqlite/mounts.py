"""Where SQLite's own locks do not protect a file, from Linux's table of mounts."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from ...errors import StoreError

_NETWORK_TYPES = frozenset(
    "9p acfs afs beegfs ceph cifs coda davfs drvfs fakeowner gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs "
    "prl_fs pvfs2 smb3 smbfs vboxsf virtiofs vmhgfs".split()
)
_LOCAL_FUSE = frozenset(
    "fuse.cryfs fuse.encfs fuse.exfat fuse.exfat-fuse fuse.ext4 fuse.fuse-overlayfs fuse.fuse2fs fuse.gocryptfs "
    "fuse.lowntfs-3g fuse.ntfs fuse.ntfs-3g".split()
)
"""On a disk or in a folder of this machine. Any other FUSE file system counts as a network share."""


def refuse_mount(path: str, real_path: str) -> None:
    """Raises for a file on a network share, and for a file that is a mount point, whose write-ahead log would be beside
    another name of the same file. `real_path` has no links in it. Only Linux lists its mounts."""
    if sys.platform != "linux":
        return
    mountinfo = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    network = network_file_system_of(real_path, mountinfo)
    if network is not None:
        raise StoreError(
            f"the lock file {path} is on a network share ({network}), where SQLite's locks do not exclude other "
            "machines; choose a local disk, or a store with a server",
            retryable=False,
        )
    if is_mount_point(real_path, mountinfo):
        raise StoreError(
            f'the lock file {path} is a mount point (as with "docker run -v file:file"), so other processes do not see '
            "the write-ahead log that SQLite keeps beside it; mount its folder instead",
            retryable=False,
        )


def network_file_system_of(path: str, mountinfo: str) -> Optional[str]:
    """The type of the file system of a path, if other machines may share it."""
    mount = _mount_of(path, mountinfo)
    if mount is None:
        return None
    is_fuse = mount.type == "fuse" or mount.type.startswith("fuse.")
    return mount.type if mount.type in _NETWORK_TYPES or (is_fuse and mount.type not in _LOCAL_FUSE) else None


def is_mount_point(path: str, mountinfo: str) -> bool:
    mount = _mount_of(path, mountinfo)
    return mount is not None and mount.point == path


@dataclass(frozen=True)
class _Mount:
    id: str
    parent: str
    point: str
    type: str


def _mount_of(path: str, mountinfo: str) -> Optional[_Mount]:
    """Follows the path as the kernel does: from mount to mount, each on top of the one before. A mount that a later one
    hides is not found."""
    mounts = [_mount_from(line) for line in mountinfo.split("\n") if " - " in line]
    ids = {mount.id for mount in mounts}
    current: Optional[_Mount] = None
    for point in _prefixes_of(path):
        while True:
            # The root mount is mounted on itself, or on a mount that the table does not show.
            found = [
                mount
                for mount in mounts
                if mount.point == point
                and (
                    mount.id == mount.parent or mount.parent not in ids
                    if current is None
                    else mount.id != mount.parent and mount.parent == current.id
                )
            ]
            if not found:
                break
            current = found[-1]
    return current


def _mount_from(line: str) -> _Mount:
    before, after = line.split(" - ", 1)
    id, parent, _, _, point = before.split(" ")[:5]
    # Spaces in a path are written as \040.
    point = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), point)
    return _Mount(id, parent, point, after.split(" ")[0])


def _prefixes_of(path: str) -> list[str]:
    """`/`, `/a`, `/a/b`."""
    parts = [part for part in path.split("/") if part]
    return ["/", *("/" + "/".join(parts[: end + 1]) for end in range(len(parts)))]
