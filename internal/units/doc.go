// Package units reads and writes quantities as operators type them: sizes
// ("4GiB", "64k", "1.5TB"), spans of time ("3s", "90") and ranges of ports
// ("20000-20100").
//
// Glossary
//
//	Bytes     a size; a bare letter is binary, as lfs has it (4m = 4 MiB), and
//	          so is KiB, MiB, …; KB, MB, … are decimal
//	Duration  a span of time; a plain number is seconds
//	Ports     a range of ports, both ends included
//
// All work as configuration values, environment values and command-line
// flags. The package knows no keys, bounds or defaults.
package units
