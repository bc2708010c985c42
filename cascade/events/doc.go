// Package events is a log of what happened on a rank, such as names that became readable
// and names that no longer are, bounded in memory, for readers that ask for events by
// number.
//
// The package does not decide what an event is, and keeps none before somebody asks for
// some.
package events
