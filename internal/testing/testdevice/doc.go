// Package testdevice is a memory tier that stands for a device's memory: byte
// slices in a map that only the tier's own methods reach. Its slots and pins have
// no Bytes, so that code which touches a block directly panics.
//
// It is for tests. The package does not outlive its process, and is not fast.
package testdevice
