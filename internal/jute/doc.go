// Package jute encodes and decodes the records of ZooKeeper's wire protocol.
//
// Jute is the serialization that ZooKeeper speaks: big-endian integers, one-byte
// booleans, and length-prefixed buffers and strings in which the length -1
// means "none". A record is its fields one after another; there are no tags and
// no padding, so both sides must know the order of the fields.
//
// # Guarantees
//
// A [Decoder] never panics and never allocates more than the input is long: a
// length is checked against what is left before it is used. Its first error is
// kept, and every later read returns the zero value, so that a whole record can
// be read before the error is asked for once.
//
// # Not here
//
// Frames (the four length bytes before each packet), sessions, and what the
// operations mean.
package jute
