// Package codecbench measures how much smaller the codecs of segments make
// blocks, and how fast, on one core. The blocks are tensors like those of KV
// caches (data.go), random bytes, and zeros; all bytes that come back are
// compared. The package does not judge its figures.
//
// Glossary
//
//	setting  one kind of content in blocks of one size
//	coder    one way to store the blocks of a setting
package codecbench
