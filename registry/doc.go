// Package registry is service discovery over ZooKeeper: it registers the
// members of this host ([Registrar]) and follows the members of groups
// ([Group], [Groups]), in the formats of the ecosystem (Nerve, ServerSet,
// Curator ServiceDiscovery and others, see [Decode] and [Encode]).
//
// Guarantees: a member is registered only after its checks have risen, under
// a znode whose owner is this session; a disconnect alone changes nothing.
// Member data is untrusted: what reaches a [view.Member] is typed and
// validated, and a child that is no member harms nobody but itself. A join
// costs one list and one read, a leave one list.
//
// Not here: rendering, running programs well (a [RunFunc] is given), and
// deciding what an empty group means to a template.
package registry
