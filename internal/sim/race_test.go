//go:build race

package sim

// raceDetector reports whether the tests run under it.
const raceDetector = true
