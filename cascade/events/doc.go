// Package events is a log of what became readable on a rank and what no longer
// is, bounded in memory, for readers that follow it by number. The package does
// not decide what an event is, and keeps none before somebody asks for some.
//
// Glossary
//
//	event   a name became readable, names another block, or is gone
package events
