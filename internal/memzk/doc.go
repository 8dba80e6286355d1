// Package memzk is an in-memory ZooKeeper: one server that speaks the real wire
// protocol, for development and for tests.
//
// It serves `zkagent dev`, where a newcomer has no ZooKeeper and no Java, and
// tests, where it produces on demand what a real server does once a year: a
// lost reply, an expiry in the middle of a read, a silent server, another
// session handed out without a word ([Faults]). Over [Server.Dial], which is net.Pipe, it
// runs inside a testing/synctest bubble, so that hours of sessions pass in
// milliseconds. Over [Server.Listen] any ZooKeeper client can use it.
//
// # Never use it for
//
// Production, or any data that anybody wants to see again. It is one process
// with no disk and no quorum: everything is gone when it ends. It has no TLS,
// no limits on clients. It listens on loopback by default.
// And it is never the only judge of a recipe: what matters is tested against a
// real server too, and the tests in internal/zktest/memzk compare it with one.
//
// # Guarantees
//
//   - Replies, error codes, Stats, watch events and their order are those of
//     ZooKeeper 3.8, standalone, with the exceptions below.
//   - A watch event is sent before any reply whose zxid is its own or later, on
//     each connection.
//   - What one connection sends, however broken, ends that connection at most.
//   - After [Server.Close] no goroutine of the server is left.
//
// # Not here
//
// Quorums, observers, dynamic reconfiguration, SASL but DIGEST-MD5, snapshots, throttling, and
// the enforcement of quotas. Children are listed in the order of their names, where a real
// server lists them in no order.
//
// # Goroutines
//
// Per connection three: one reads frames into a queue that stands for the
// network, one handles them, one writes the answers. Per server one that
// expires sessions and reaps containers, and one per listener. All state is
// guarded by one mutex, so requests are handled one after another.
package memzk
