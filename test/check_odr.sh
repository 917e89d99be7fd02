#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Checks that no test program has two classes or inline functions of the same name in one namespace: the
# linker would use one of them for both. Helpers of a file belong into an anonymous namespace.
command -v perl >/dev/null || exit 77
cd "${srcdir:-.}" || exit 1
exec perl -w - <<'END_OF_PERL'
use strict;

# file => {names => {name with namespaces => 1}, includes => [file]}
my %file;

sub scan {
  my ($path) = @_;
  return $file{$path} if $file{$path};
  my $found = $file{$path} = {names => {}, includes => []};
  open my $handle, '<', $path or die "$path: $!";
  my $text = do { local $/; <$handle> };
  push @{$found->{includes}}, grep { -f } map { "test/$_" } $text =~ /^#include "(.*)"/mg;
  $text =~ s{/\*.*?\*/|//[^\n]*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\d)'(?:\\.[^']*|[^'\\])'}{ }gs;
  $text =~ s{^[ \t]*#(\\\n|[^\n])*}{}gm;
  my @spaces;  # undef: not a namespace
  while ($text =~ /\G([^{};]*)([{};])/gc) {
    my ($said, $mark) = ($1, $2);
    if ($mark eq '}') { pop @spaces; next }
    next if $mark eq ';';
    $said =~ s/\s+/ /g;
    $said =~ s/^ //;
    if ($said =~ /^(?:inline )?namespace ?([\w:]*) ?$/) { push @spaces, $1; next }
    if (!grep { !defined || $_ eq '' } @spaces) {
      my $name = $said =~ /^(?:class|struct|union|enum(?: class)?) (?:alignas ?\([^()]*\) )?([\w:]+)/ ? $1
        : $said =~ /^inline [^=]*?(\w+ ?\(.*\))/ ? $1 : '';
      $found->{names}{join '::', @spaces, $name} = 1 if $name ne '';
    }
    push @spaces, undef;
  }
  die "$path: its braces are not understood\n" if @spaces;
  return $found;
}

# Returns all files of a program.
sub closure {
  my %seen;
  while (defined(my $path = shift)) {
    push @_, @{scan($path)->{includes}} unless $seen{$path}++;
  }
  return sort keys %seen;
}

open my $make, '<', 'test/Makefile.include' or die "test/Makefile.include: $!";
my $text = do { local $/; <$make> };
my %sources;
$sources{$1} = [$2 =~ /(\S+\.cc)/g] while $text =~ /^test_(\w+)_files = \\\n((?:\t.*\n)+)/mg;
if ($text =~ /^own_test_programs = \\\n((?:\t.*\n)+)/m) {
  $sources{$_} = ["$_.cc"] for $1 =~ m{([\w/]+)}g;
}
my @product = split /\n/, `find prov -name '*.cc' -o -name '*.h'`;
my $bad = 0;
for my $program (sort keys %sources) {
  my %place;
  for my $path (@product, closure(@{$sources{$program}})) {
    for my $name (sort keys %{scan($path)->{names}}) {
      my $other = $place{$name};
      # A stand-in intentionally has the name of the class that it replaces.
      if ($other && !($other =~ m{^prov/} && $path =~ m{^test/fake/})) {
        print "$name is in $other and in $path, which are in one program ($program)\n";
        $bad = 1;
      }
      $place{$name} = $path;
    }
  }
}
exit $bad;
END_OF_PERL
