// Package arrows holds no code: its tests keep the arrows between the packages
// and the maps of the code.
package arrows
