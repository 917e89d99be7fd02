#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# A class has at most 25 methods, an interface declares at most 13 virtual ones, and one .cc file
# defines the methods of a class. Constructors, destructors and defaulted functions do not count.
# check_classes.txt lists the exceptions. `check_classes.sh --print` prints this list as the tree needs
# it, with the reasons in the present list (do not redirect it into the list, which is read meanwhile), and
# `check_classes.sh --all` prints the figures of every class.
command -v perl >/dev/null || exit 77
cd "${srcdir:-.}" || exit 1
exec perl -w - "$@" <<'END'
use strict;
my %limit = (methods => 25, virtual => 13, files => 1);
my $list = 'test/check_classes.txt';

# name => {file, methods, virtual, files => {cc file => 1}}
my %class;

sub text_of {
  my ($file) = @_;
  open my $handle, '<', $file or die "$file: $!";
  local $/;
  my $text = <$handle>;
  $text =~ s{/\*.*?\*/}{ }gs;
  $text =~ s{//[^\n]*}{}g;
  $text =~ s{R"(\w*)\(.*?\)\1"}{""}gs;
  $text =~ s{(?<!\d)'(\\.[^']*|[^'\\])'}{0}g;
  $text =~ s{"(\\.|[^"\\\n])*"}{""}g;
  $text =~ s{^[ \t]*#(\\\n|[^\n])*}{}gm;
  return $text;
}

# A declaration without template arguments, attributes and other parts with parentheses of their own.
sub plain {
  my ($text) = @_;
  $text =~ s/\s+/ /g;
  1 while $text =~ s/^ ?(public|private|protected) ?: ?//;
  $text =~ s/\boperator ?\(\)/operator_call/g;
  $text =~ s/\boperator ?[^\w\s(]+/operator_x/g;
  $text =~ s/\[\[.*?\]\] ?//g;
  $text =~ s/->/ /g;
  1 while $text =~ s/<[^<>]*>//g;
  1 while $text =~ s/\b(alignas|__attribute__|decltype|noexcept|explicit|requires) ?\((?:[^()]|\([^()]*\))*\)/ /;
  $text =~ s/^ //;
  return $text;
}

# The name before the first parenthesis of a function's declaration, with its scopes; '' = none.
sub function_of {
  my ($text) = @_;
  return '' if $text =~ /^(friend|using|typedef|enum|static_assert|extern "" )\b/;
  return '' if $text =~ /^[^(]*\( ?\*/;  # a pointer to a function
  return '' unless $text =~ /^([^(]*?)((?:\w+ ?:: ?)*~?\w+) ?\(/;
  my ($before, $name) = ($1, $2);
  return '' if $before =~ /=/ || $name =~ /^(if|for|while|switch|return)$/;
  $name =~ s/ //g;
  return $name;
}

sub count_member {
  my ($class, $text) = @_;
  my $plain = plain($text);
  return if $plain =~ /= ?(default|delete) ?$/;
  my $name = function_of($plain);
  my ($own) = $class =~ /(\w+)$/;
  return if $name eq '' || $name eq $own || $name =~ /~|::/;
  $class{$class}{methods}++;
  $class{$class}{virtual}++ if $plain =~ /^(?:inline )?virtual\b/;
}

my @definitions;  # [scope, name with scopes, file]

sub scan {
  my ($file) = @_;
  my $text = text_of($file);
  my @scopes = ({kind => 'space', name => ''});
  my $said = '';
  while ($text =~ /\G([^{};]*)([{};])/gc) {
    my ($part, $mark) = ($1, $2);
    my $top = $scopes[-1];
    if ($top->{kind} eq 'code') {
      if ($mark eq '{') { $top->{depth}++ }
      elsif ($mark eq '}' && --$top->{depth} == 0) {
        pop @scopes;
        $said = $top->{goes_on} ? $top->{said} . '{}' : '';
      }
      next;
    }
    $said .= $part;
    if ($mark eq '}') { pop @scopes if @scopes > 1; $said = ''; next }
    my $plain = plain($said);
    my $scope = $top->{name};
    if ($mark eq '{' && $plain =~ /^(?:inline )?namespace ?([\w:]*) ?$/) {
      push @scopes, {kind => 'space', name => join '::', grep { $_ ne '' } $scope, $1};
      $scopes[-1]{name} =~ s/^erdma(::|$)//;
      $said = '';
    } elsif ($mark eq '{' && $plain eq 'extern "" ') {
      push @scopes, {kind => 'space', name => $scope};
      $said = '';
    } elsif ($mark eq '{' && $plain =~ /^(?:template )?(?:class|struct|union) +((?:\w+ ?:: ?)*\w+)? ?(?:final)? ?(?::(?!:)[^(]*)?$/) {
      my $name = join '::', grep { $_ ne '' } $scope, $1 // '(unnamed)';
      push @scopes, {kind => 'class', name => $name};
      $class{$name} //= {file => $file, methods => 0, virtual => 0, files => {}};
      $said = '';
    } else {
      # Here ends a declaration, or the head of a function's body, or the part before an initializer.
      my $goes_on = 0;
      if ($mark eq '{') {
        my $function = function_of($plain) ne '';
        my $members = $plain =~ /\) ?(?:noexcept)? ?:(?!:)/;
        $goes_on = !$function || ($members && $plain =~ /\w ?$/);
        $goes_on = 0 if $plain =~ /^(enum)\b/;
        push @scopes, {kind => 'code', depth => 1, goes_on => $goes_on, said => $said};
      }
      if (!$goes_on) {
        count_member($scope, $said) if $top->{kind} eq 'class';
        push @definitions, [$scope, function_of($plain), $file]
          if $top->{kind} eq 'space' && $mark eq '{' && $file =~ /\.cc$/;
        $said = '';
      }
    }
  }
  die "$file: its braces are not understood\n" if @scopes > 1;
}

sub find_class {
  my ($scope, $name) = @_;
  for (;;) {
    my $full = $scope eq '' ? $name : "${scope}::$name";
    return $full if $class{$full};
    return undef if $scope eq '';
    $scope =~ s/(::)?\w+$//;
  }
}

my @files = sort split /\n/, `find prov -name '*.h' -o -name '*.cc'`;
scan($_) for @files;
for (@definitions) {
  my ($scope, $name, $file) = @$_;
  next unless $name =~ s/::~?\w+$//;
  my $class = find_class($scope, $name);
  $class{$class}{files}{$file} = 1 if defined $class;
}

my %reason;  # class => kind => [number, reason]
if (open my $handle, '<', $list) {
  while (<$handle>) {
    next if /^#|^\s*$/;
    my ($name, $kind, $number, $why) = /^(\S+)\s+(methods|virtual|files)\s+(\d+)(?:\s+(\S.*))?$/
      or die "$list:$.: not understood\n";
    $reason{$name}{$kind} = [$number, $why // ''];
  }
}

sub figure { my ($name, $kind) = @_; my $x = $class{$name}{$kind}; ref $x ? scalar keys %$x : $x }

my $mode = $ARGV[0] // '';
if ($mode eq '--all') {
  for (sort { figure($b, 'methods') <=> figure($a, 'methods') || $a cmp $b } keys %class) {
    printf "%4d methods %3d virtual %2d files  %-44s %s\n",
      figure($_, 'methods'), figure($_, 'virtual'), figure($_, 'files'), $_, $class{$_}{file};
  }
  exit 0;
}
my $bad = 0;
if ($mode eq '--print' && open my $handle, '<', $list) {
  while (<$handle>) { print if /^#/ }
}
my %text = (methods => 'methods', virtual => 'virtual methods', files => 'files with its methods');
for my $name (sort keys %class) {
  for my $kind (qw(methods virtual files)) {
    my $number = figure($name, $kind);
    my $listed = delete $reason{$name}{$kind};
    my $permitted = $listed ? $listed->[0] : $limit{$kind};
    if ($mode eq '--print') {
      print join(' ', $name, $kind, $number, $listed && $listed->[1] ne '' ? $listed->[1] : ()), "\n"
        if $number > $limit{$kind};
      next;
    }
    my $what = "$class{$name}{file}: $name has $number $text{$kind}";
    if ($number > $permitted) {
      print "$what, the limit is $permitted\n";
      print "  $_\n" for $kind eq 'files' ? sort keys %{$class{$name}{files}} : ();
      $bad = 1;
    } elsif ($listed && $number <= $limit{$kind}) {
      print "$what: $list need not list it\n";
      $bad = 1;
    } elsif ($listed && $listed->[1] eq '') {
      print "$what: $list gives no reason\n";
      $bad = 1;
    } elsif ($listed && $number < $permitted) {
      print "$what, fewer than the $permitted that $list permits\n";
    }
  }
}
for my $name (sort keys %reason) {
  next unless %{$reason{$name}} && $mode eq '';
  print "$list: there is no class $name\n";
  $bad = 1;
}
exit $bad;
END
