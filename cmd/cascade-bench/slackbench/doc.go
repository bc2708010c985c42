// Package slackbench restores prefixes layer by layer in a simulation, and compares
// three ways to order the transfers: all reads before the first layer (sync); reads of
// the next layer and writes of the last one beside each layer, whatever else is in
// flight (mixed); and the plans of gpu/slack (slack). Tutti Fig. 13 has the form of
// the result: compute time and bubble time by hit rate.
//
// Glossary
//
//	bubble     what the first token waits for besides compute: its time less that of all
//	           layers with the GPU to themselves
//	crossover  the hit rate from which on the bubble is longer than compute
//
// A model of a GPU, a model's layers and a set of disks makes the profile, and
// takes the place of what really happens, with noise that the profile does not
// have. Times are simulated, but for the processor time that a plan costs.
//
// The package does no I/O and needs no GPU, and does not judge its figures.
package slackbench
