//go:build !race

package policy

const underRace = false
