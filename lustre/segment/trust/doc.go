// Package trust decides whose files and directories are read: somebody else may have
// put into the campaign's directory what they like.
//
// Glossary
//
//	refused  not read because of whose it is, or because others may change it
//
// The package reads no segment, and does not protect the directory itself: permissions
// and the sticky bit do.
package trust
