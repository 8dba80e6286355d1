// Package haproxy puts the members of a group into the server slots of a
// HAProxy backend, through HAProxy's runtime API. HAProxy is not reloaded.
//
// A backend keeps empty slots ("server-template slot 20 127.0.0.1:1
// disabled"). A member keeps the slot that has its address. A new member takes
// a slot in maintenance. The slot of a member that is gone goes into
// maintenance: requests that run end, new ones go elsewhere. So a leaving
// member does not move the others.
//
// Guarantees: only addresses, numbers and fixed words reach HAProxy. After the
// commands the state is read back and compared, so that a command that HAProxy
// took without effect is an error. Apply may be repeated at any time: it sends
// what differs.
//
// Not here: following the group, and health checks, which are HAProxy's own.
package haproxy
