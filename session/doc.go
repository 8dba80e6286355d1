// Package session is a ZooKeeper client for programs that must know where they stand:
// one session at a time, with a context that ends with it, operations whose errors
// tell what happened, watches that lose nothing, and a lease that says until when
// what the session holds may be acted upon.
//
// # Guarantees
//
//   - An operation takes a context and ends with it. A read waits for a connection
//     and is repeated over lost ones. A write is sent again only while it cannot have
//     been applied; otherwise its error matches [ErrUnknown]. [Session.CreateProtected]
//     and [ProtectedMulti] find out.
//   - A [Watch] closes when what was read may have changed. Over a reconnect all
//     watches are set again as of the last zxid that was seen before, so that no event
//     is lost. An event that arrived before the reply to a read has closed its watch
//     before the read returns.
//   - [Session.Context] ends with a cause that matches [ErrExpired] or [ErrClosed]. A
//     server that answers with another session id has expired this one; a request of
//     one session never runs in the next.
//   - [Session.Lease] is 2/3 of the timeout after the send time of the newest answered
//     request, so that what is held can be given up before a server gives it away.
//     [Session.WithLease] makes a context of it.
//   - A lost connection is [Suspended]: not lost, and not held.
//   - A [Manager] with a state directory takes over the session that its former process
//     handed over, or left behind in a crash.
//   - When Run or Close has returned, no goroutine is left.
//
// # Not here
//
// Recipes are package recipe. There is no SASL and no read-only mode. Reads may be stale, as ZooKeeper's are; [Session.Sync] catches up. A paused
// process cannot know that its lease ran out between the check and the act: that is
// what fencing tokens (the czxid of what it holds) are for.
//
// The connection itself (dialing, handshake, pings, reconnecting) is that of
// github.com/go-zookeeper/zk, which sees a repaired network through a net.Conn; all
// other requests are frames of this package.
package session
