// Package race says whether the tests run under the race detector, where every step takes
// ten times as long, so that tests of all points of something take some of them there,
// and where sync.Pool forgets at random.
//
// Ask it only for what takes long or is bound to differ. The package does not decide which tests run:
// a test that the detector has no use for says so by a skip.
package race
