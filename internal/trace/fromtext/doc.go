// Package fromtext makes traces of data sets of conversations: from their text,
// or, for benchmarks whose text is not at hand, from their published lengths.
//
// Tokens are estimated: a token is so many characters (code points) of text. A
// prompt is cut into blocks of so many tokens, and a block's id stands for the
// text up to its end, so two prompts share ids exactly when they share that
// text. Ids count up in order of appearance, as in Mooncake's traces. A session is
// a conversation; each of its answered questions is a request, whose prompt is
// all of the conversation before the answer.
//
// The package has no tokenizer and downloads nothing.
package fromtext
