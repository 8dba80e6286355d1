// Package registry is service discovery over ZooKeeper: it registers the
// members of this host ([Registrar]) and follows the members of groups
// ([Group], [Groups]), in the formats of the ecosystem (Nerve, ServerSet,
// Curator ServiceDiscovery and others, see [Decode] and [Encode]).
//
// A group is a znode; each of its children is a member. A Registrar keeps one member
// there while its checks pass, across sessions. Run its checks with
// [Registrar.RunChecks] for as long as the program wants, and call [Registrar.Run] once
// in each session. A Group sends a [view.Group] whenever the members to use have
// changed. Run it once in each session, too; it remembers what it has seen. Data from
// ZooKeeper passes three stages. The first decodes and validates. The second damps
// members that come and go all the time: it marks them down. The third is the guard:
// when many members vanish at once, it keeps them for a while ([GuardConfig]).
//
// Guarantees: a member is registered only after its checks have risen, under a
// znode whose owner is this session; a disconnect alone changes nothing. Member
// data is untrusted: every value in a [view.Member] is typed and validated, and an
// invalid child affects no other child. A join costs one list and one read, a leave
// one list. The work for a change does not grow with the group, except for walks
// along its list.
//
// Not here: rendering, supervising commands (the caller gives a [RunFunc]), and
// deciding what an empty group means to a template.
package registry
