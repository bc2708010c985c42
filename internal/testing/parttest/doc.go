// Package parttest sets up the state of a rank for tests of the store's parts:
// a residency.State over a real arena and a clock that stands still, with blocks in
// whatever tier a test wants them, a Watcher that records what it is called for,
// and a cold tier that records what it is given and refuses what it should.
//
// The package makes no Store: what stands above the part under test is not there.
package parttest
