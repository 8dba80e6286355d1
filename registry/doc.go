// Package registry is service discovery over ZooKeeper: it registers the
// members of this host ([Registrar]) and follows the members of groups
// ([Group], [Groups]), in the formats of the ecosystem (Nerve, ServerSet,
// Curator ServiceDiscovery and others, see [Decode] and [Encode]).
//
// A group is a znode; each of its children is a member. A Registrar keeps one
// member there while its checks pass, from session to session: its checks run
// in [Registrar.RunChecks] as long as the program wants, [Registrar.Run] is
// called once in each session. A Group sends a [view.Group] whenever what is to
// be used has changed; it, too, is run once in each session and remembers what
// it has seen. What comes from ZooKeeper passes three stages: decoding and
// validation, damping of members that come and go all the time (they are down,
// and marked), and the guard, which does not believe that many have vanished at
// once ([GuardConfig]).
//
// Guarantees: a member is registered only after its checks have risen, under
// a znode whose owner is this session; a disconnect alone changes nothing.
// Member data is untrusted: what reaches a [view.Member] is typed and
// validated, and a child that is no member harms nobody but itself. A join
// costs one list and one read, a leave one list, and the work for a change
// does not grow with the group but for walks along its list.
//
// Not here: rendering, running programs well (a [RunFunc] is given), and
// deciding what an empty group means to a template.
package registry
