// Package tombstones records which entries of a catalogue a rank has
// invalidated, until the catalogue itself has withdrawn them and whoever found
// them before has asked for their blocks. The package does not withdraw
// anything: its owner does, and reports it.
//
// Glossary
//
//	tombstone  of a name: puts of it that are stamped below do not count
//	clearing   the same of a whole namespace, or of all
package tombstones
