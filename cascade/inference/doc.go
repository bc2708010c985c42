// Package inference concludes which key comes before which in a chain, for namespaces
// where nobody names parents: keys that stand for prefixes of tokens are asked for and
// put in the order of their chain, and each has one key before it, whatever request it
// is in.
//
// Glossary
//
//	refuted   of a key that came after two different ones: it stands for no prefix
//
// What is concluded is a hint. The package does not know which blocks are stored, and
// does not decide what a hint is used for.
package inference
