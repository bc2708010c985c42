//go:build !race

package resp

const poolForgets = false
