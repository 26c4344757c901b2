"""placeholder"""
class Link: pass
class Edit: pass
