// Package tunerbench compares an index that is tuned for its work with one whose
// shape stays: on the cost model, with the workload of the SGLang-LSM paper
// (Run), and on real indexes (Ablation). Everything is drawn from fixed seeds.
// The package does not judge its figures.
//
// Glossary
//
//	target  an index that requests are replayed on, or a model of one
//	stage   requests of one hit rate
//	phase   requests of one kind: writes, points or ranges
package tunerbench
