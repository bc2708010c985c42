//go:build race

package sim

// raceDetector tells whether the tests run under it.
const raceDetector = true
