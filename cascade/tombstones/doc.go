// Package tombstones records which entries of a catalogue a rank has
// invalidated, until the catalogue itself has withdrawn them and whoever found
// them before has asked for their blocks. The package does not withdraw
// anything: its owner does, and reports it.
//
// Glossary
//
//	clearing   a tombstone of a whole namespace, or of all
package tombstones
