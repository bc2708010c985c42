//go:build !race

package segment

const raced = false
