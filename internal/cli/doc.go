// Package cli is what the operator's programs have in common: exit statuses,
// usage errors, output as JSON or in columns, progress bars, the end by a
// signal, and other programs of the same build. The package has no verbs.
//
// Glossary
//
//	verb   one subcommand
//	usage  a mistake on the command line or in the configuration
package cli
