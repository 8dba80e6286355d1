// Package session is a ZooKeeper client for programs that must know the state of their
// session. It keeps one session at a time, with a context that ends with the session.
// The error of an operation shows whether it happened. A watch loses no event. The
// session's lease limits how long the program may act on the session's znodes.
//
// # Guarantees
//
//   - An operation takes a context and ends with it. A read waits for a connection,
//     and is repeated when the connection is lost. A write is sent again only while
//     it cannot have been applied; otherwise its error matches [ErrUnknown].
//     [Session.CreateProtected] finds out whether it was.
//   - A [Watch] fires when the data may have changed. After a reconnect the session
//     sets all watches again, as of the last zxid that it saw before, so no event is
//     lost. An event that arrived before the reply to a read has fired its watch
//     before the read returns.
//   - [Session.Context] ends with a cause that matches [ErrExpired] or [ErrClosed]. A
//     server that answers with another session id has expired this one; a request of
//     one session never runs in the next.
//   - [Session.Lease] is 2/3 of the timeout after the send time of the latest answered
//     request. So a holder can stop before the server gives its lock to another
//     client. [Session.WithLease] makes a context of it.
//   - A lost connection makes the session [Suspended]: the server may still have the
//     session, but the client must not rely on it.
//   - A [Manager] with a state directory takes over the session that its previous process
//     handed over, or left behind in a crash.
//   - After Run or Close has returned, no goroutine of the session runs.
//
// # Limitations
//
// Recipes are in package recipe. Reads may be stale, as in all of ZooKeeper;
// [Session.Sync] catches up. A paused process cannot know that its lease ran out
// between the check and the act. Use fencing tokens against that: the czxid of the
// znode that the process holds.
//
// github.com/go-zookeeper/zk does the dialing, the handshake, the pings and the
// reconnects. It sees the network through a net.Conn of this package, which repairs
// its faults. This package sends all other requests itself.
package session
