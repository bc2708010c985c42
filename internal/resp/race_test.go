//go:build race

package resp

// The race detector makes sync.Pool forget at random.
const poolForgets = true
