// Package config is the configuration of one rank: one struct, where its
// values come from, and what is wrong with them.
//
// Glossary
//
//	source    built-in, /etc/cascade/cascade.toml, /etc/cascade/conf.d/*.toml,
//	          the file of --config or CASCADE_CONFIG, CASCADE_* variables,
//	          flags; a later source overrides an earlier one, key by key
//	origin    the place that set a key: "file:line", a variable or a flag
//
// Keys, variable names and flags are derived from the struct, so they cannot
// disagree: shm.bytes is CASCADE_SHM_BYTES is --shm-bytes. Files and flags are
// read strictly: a name that means nothing is an error that names its place and
// the nearest name that does. A variable that means nothing is a warning, since
// others set variables too.
//
// The package reads files and variables and judges values by themselves, and
// does not look at the machine (free space, limits: cascade doctor does) and
// starts nothing.
package config
