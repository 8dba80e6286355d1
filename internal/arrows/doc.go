// Package arrows holds no code: its tests keep the arrows between the packages,
// the sizes of the parts, and the maps of the code.
package arrows
