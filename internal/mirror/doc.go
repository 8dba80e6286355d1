// Package mirror keeps a live copy of a subtree of ZooKeeper in one session.
//
// # Guarantees
//
// Each znode is read once and then only when its watch fired: work and requests
// per change do not depend on the size of the tree. An event is never taken for
// data; it says "read again". There is at most one live watch per path and kind.
// A znode that changes many times while it is waiting to be read is read once.
// Snapshots are immutable and share what did not change.
//
// A root that does not exist yet, vanishes or is recreated is normal. A znode
// that cannot be read has its error in the snapshot, is tried again with a back-off,
// and does not disturb the rest.
//
// # Not here
//
// Servers from 3.8.4 and 3.9.2 on keep events of znodes that a session may not read
// from a recursive watch. So in a large tree the first child of a znode without
// children, if it may not be read, is known only when it may be read and changes,
// when the znode gets another child, or at the next session.
//
// A snapshot is not a moment of the tree: its znodes were read one after another.
// The caller decides which trees are complete (the ready rule).
package mirror
