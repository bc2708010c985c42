//go:build race

package directory

// raceDetector reports whether the tests run under it.
const raceDetector = true
