// Package dns answers DNS queries from the agent's view: the members of groups and
// the leaders of elections. Programs that use it need no rendered file and no
// reload. docs/discovery.md has the names, the answers and the bounds.
//
// Guarantees: an answer comes from one immutable view. A source that has not reported
// yet gets SERVFAIL, so that no client caches its absence. As in templates, answers
// contain held members and omit draining ones. During an outage the last known
// members stay.
//
// [Ask] asks a listener whether it answers for its domain.
//
// Not here: other zones (the server refuses such queries or forwards them to
// recursors), zone transfers, DNSSEC.
package dns
