// Package mungetest runs MUNGE for tests: a munged of their own, with a key of
// its own, on any machine that has the program, by any user.
//
// Its words are those of internal/munge. Credentials of one munged are refused by
// another, as between two clusters.
// The package does not use the machine's own munged, nor end it. A test on a
// machine without the program is skipped, and fails where CI=true.
package mungetest
