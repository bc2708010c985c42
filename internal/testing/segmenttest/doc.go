// Package segmenttest has what the tests of segments share: blocks whose bytes a
// codec can or cannot shrink, files in memory, and segments that are inspected,
// written anew and transferred.
//
// The package opens no store, so that the tests of package segment can use it.
package segmenttest
