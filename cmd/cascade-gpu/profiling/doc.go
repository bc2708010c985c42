// Package profiling makes the profile of a deployment for the slack scheduler
// (gpu/slack): how long launches of reads and writes take on its disk, measured
// through gpu/gio, and how long layers compute.
//
// Compute windows come from a model of the GPU and of the model's layers, with figures
// that the caller gives: nothing here runs a layer on a GPU. The report says so. A profile that
// is there for the same key is used again and nothing is measured.
//
// The package does not decide what is launched, and calls no driver.
package profiling
