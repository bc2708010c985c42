// Package admin is the HTTP side of a rank, for operators: metrics for Prometheus,
// health, statistics as JSON, and profiles.
//
// Glossary
//
//	snapshot  what a server and its store report at one moment; CASCADE.STATS has it
//	          too
//	counters  what only /metrics reports beside it
//
// Whoever makes a Server says where the figures come from and who may see them. The
// package does not count, and does not change anything.
package admin
