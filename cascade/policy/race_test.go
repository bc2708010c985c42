//go:build race

package policy

const underRace = true // every step takes much longer, and there is one goroutine
