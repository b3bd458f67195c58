"""The named methods: one small file each, a class that composes rules and says its name.

What lives here is composed of `fedsps.rules` (a rule that only one method has may stand in the method's own file) and
imports nothing above them. `registry` finds the methods and the rules by what their classes say, `notation` reads and
writes them as the command line does: `fedsps:cap=10+amsgrad`. Adding a method is adding a file.
"""
