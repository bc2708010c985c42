// Package manual makes the man pages and shell completions of the commands from
// what their --help prints, and cascade.toml(5) from the sample configuration.
//
// A command's main package calls Main in a build with the tag manual, in which it
// does nothing else (make package). Pages are written in Markdown and translated
// to roff by md2man, as cobra's own generator does it; that one makes a page for
// each verb and takes help texts for Markdown.
//
// The package is in no program that is installed, and does not judge texts: what
// --help says is what the page says.
package manual
