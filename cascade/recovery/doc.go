// Package recovery rebuilds the state of a rank from what its tiers hold when a
// store is opened. Several tiers, and several records of one tier, may speak of
// the same name: the record with the highest sequence number is the truth.
//
// It runs once, before any request. The package does not read tiers while the store
// runs: package others adopts what others leave meanwhile.
package recovery
