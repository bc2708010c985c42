// Package trace reads, writes, summarises and synthesises prefix-hash traces
// in Mooncake's JSON Lines form, and derives the bytes of a block from its
// hash id.
//
// Glossary
//
//	request  one line: when an engine was asked, how long the prompt and the
//	         answer were, and which blocks the prompt is made of
//	hash id  a number that stands for one block and everything before it: two
//	         prompts share a hash id exactly when they share that prefix
//	block    BlockTokens tokens of a prompt; its last block may be shorter
//	session  a conversation: every turn's prompt is the one before it, the
//	         answer to that, and new text
//	assumed  what a reader took for granted where a trace leaves something open;
//	         what has several meanings is refused instead
//	payload  the bytes that stand for a block's KV data, a function of its
//	         hash id alone, so that any replayer can verify any other's
//
// The package knows nothing of stores, tiers, keys or sockets: internal/replay
// drives those with what is read here.
package trace
