// Package peers joins a rank's store to the other ranks of its job: it opens the
// fabric, TCP or MPI, makes the rank's node of the distributed store, and starts
// the membership that finds the others and notices their ends.
//
// Order of a start over TCP: MUNGE is looked for, the fabric listens, the node
// serves, gossip begins. Over MPI rank 0 begins with gossip, since what it shares
// with the others (a seed and a secret) is part of the one collective call in
// which all ranks meet; then each opens the fabric and its node. Close ends gossip,
// node, fabric and MPI, in this order.
//
// Glossary
//
//	stranger  whoever connects to the fabric without proof of the job's secret
//
// The package does not decide where blocks lie, and neither opens nor closes the
// store.
package peers
