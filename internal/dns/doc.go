// Package dns answers DNS queries from the agent's view: the members of groups and
// the leaders of elections. Programs that use it need no rendered file and no
// reload.
//
// Names, below the domain of the settings ("zkagent." here):
//
//	GROUP.group.zkagent.                A, AAAA, SRV of the members that may get traffic
//	_GROUP._tcp.group.zkagent.          the same SRV, spelled as in RFC 2782
//	MEMBER.node.GROUP.group.zkagent.    A, AAAA or CNAME, SRV, TXT (labels) of one member
//	PORT.port.GROUP.group.zkagent.      SRV with a named port; A, AAAA of the members that have it
//	CHILD.SET.groups.zkagent.           a group of a set of groups; the forms above hold before it
//	leader.ELECTION.election.zkagent.   TXT with the leader's id and term; A, AAAA when they are known
//
// Guarantees: an answer comes from one immutable view. An unknown name gets
// NXDOMAIN. A group without members gets NODATA. A source that has not reported yet
// gets SERVFAIL, so that no client caches its absence. As in templates, answers
// contain held members and omit draining ones. During an outage the last known
// members stay.
//
// Bounds: UDP answers fit the client's buffer and 1,232 bytes. A larger answer is
// truncated, and the client asks over TCP. Clients other than the loopback get a
// bounded rate of full UDP answers. Beyond that rate they get an empty truncated
// answer, which is no larger than the query. TCP connections, forwarded queries and
// their time are bounded.
//
// [Ask] asks a listener whether it answers for its domain.
//
// Not here: other zones (the server refuses such queries or forwards them to
// recursors), zone transfers, DNSSEC.
package dns
