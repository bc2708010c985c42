// Package tunerbench compares an index that is tuned for its work with one whose
// shape stays: on the cost model, with the workload of the SGLang-LSM paper
// (Run), on real indexes (Ablation), and as the catalogue of a running rank that
// serves the paper's stages (Stages). Everything is drawn from fixed seeds.
//
// A run prints the predicted and the measured cost of each phase of the workload.
// The package does not judge its figures.
package tunerbench
